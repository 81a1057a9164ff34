// The texts of the tokens that structure a chat. Ids differ from model to model (the release and
// the demo model number them differently): look them up by text, Tokenizer::added_token().
#pragma once

#include <array>
#include <string_view>

namespace onecard::text {

inline constexpr std::string_view kBos = "<\uff5cbegin\u2581of\u2581sentence\uff5c>";
inline constexpr std::string_view kEos = "<\uff5cend\u2581of\u2581sentence\uff5c>";
inline constexpr std::string_view kSystemTag = "<\uff5cSystem\uff5c>";
inline constexpr std::string_view kUserTag = "<\uff5cUser\uff5c>";
inline constexpr std::string_view kAssistantTag = "<\uff5cAssistant\uff5c>";
inline constexpr std::string_view kThinkOpen = "<think>";
inline constexpr std::string_view kThinkClose = "</think>";
/// The tool markup marker; the '<' or "</" in front of it is ordinary text.
inline constexpr std::string_view kDsml = "\uff5cDSML\uff5c";
inline constexpr std::string_view kDsmlOpen = "<\uff5cDSML\uff5c";
inline constexpr std::string_view kDsmlClose = "</\uff5cDSML\uff5c";
inline constexpr std::string_view kLatestReminder = "<\uff5clatest_reminder\uff5c>";
inline constexpr std::string_view kImage = "<\uff5cdeepseek_image\uff5c>";
inline constexpr std::string_view kTaskAction = "<\uff5caction\uff5c>";
inline constexpr std::string_view kTaskQuery = "<\uff5cquery\uff5c>";
inline constexpr std::string_view kTaskAuthority = "<\uff5cauthority\uff5c>";
inline constexpr std::string_view kTaskDomain = "<\uff5cdomain\uff5c>";
inline constexpr std::string_view kTaskTitle = "<\uff5ctitle\uff5c>";
inline constexpr std::string_view kTaskReadUrl = "<\uff5cread_url\uff5c>";

/// What a client must not be able to forge by typing it.
inline constexpr std::array kChatTokens = {
    kBos,           kEos,        kSystemTag,      kUserTag,    kAssistantTag, kThinkOpen,
    kThinkClose,    kDsml,       kLatestReminder, kImage,      kTaskAction,   kTaskQuery,
    kTaskAuthority, kTaskDomain, kTaskTitle,      kTaskReadUrl};

/// Sampling stops on these without printing them: EOS, and what begins somebody else's turn.
inline constexpr std::array kStopTokens = {kEos, kBos, kSystemTag, kUserTag, kAssistantTag};

}  // namespace onecard::text
