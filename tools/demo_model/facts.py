"""Small closed set of facts: (question, short answer, full sentence)."""

CAPITALS = {"France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon", "the United Kingdom": "London",
            "Ireland": "Dublin", "the Netherlands": "Amsterdam", "Belgium": "Brussels", "Austria": "Vienna", "Switzerland": "Bern",
            "Poland": "Warsaw", "Czechia": "Prague", "Hungary": "Budapest", "Greece": "Athens", "Turkey": "Ankara", "Russia": "Moscow",
            "Ukraine": "Kyiv", "Sweden": "Stockholm", "Norway": "Oslo", "Denmark": "Copenhagen", "Finland": "Helsinki",
            "Iceland": "Reykjavik", "Estonia": "Tallinn", "Latvia": "Riga", "Lithuania": "Vilnius", "Romania": "Bucharest",
            "Bulgaria": "Sofia", "Serbia": "Belgrade", "Croatia": "Zagreb", "Egypt": "Cairo", "Morocco": "Rabat", "Kenya": "Nairobi",
            "Nigeria": "Abuja", "Ethiopia": "Addis Ababa", "Ghana": "Accra", "Senegal": "Dakar", "Tunisia": "Tunis", "Algeria": "Algiers",
            "China": "Beijing", "Japan": "Tokyo", "South Korea": "Seoul", "India": "New Delhi", "Pakistan": "Islamabad",
            "Thailand": "Bangkok", "Vietnam": "Hanoi", "Indonesia": "Jakarta", "the Philippines": "Manila", "Nepal": "Kathmandu",
            "Iran": "Tehran", "Iraq": "Baghdad", "Saudi Arabia": "Riyadh", "Australia": "Canberra", "New Zealand": "Wellington",
            "Canada": "Ottawa", "the United States": "Washington, D.C.", "Mexico": "Mexico City", "Cuba": "Havana", "Brazil": "Brasilia",
            "Argentina": "Buenos Aires", "Chile": "Santiago", "Peru": "Lima", "Colombia": "Bogota", "Ecuador": "Quito"}

# question | short answer | sentence
_TABLE = """
What color is the sky on a clear day?|Blue|The sky is blue on a clear day.
What color is grass?|Green|Grass is green.
What color is snow?|White|Snow is white.
What color is a ripe banana?|Yellow|A ripe banana is yellow.
What color is coal?|Black|Coal is black.
What color do you get when you mix blue and yellow?|Green|Blue and yellow mixed give green.
What color do you get when you mix red and white?|Pink|Red and white mixed give pink.
What color do you get when you mix red and blue?|Purple|Red and blue mixed give purple.
What color do you get when you mix red and yellow?|Orange|Red and yellow mixed give orange.
How many days are in a week?|Seven|There are seven days in a week.
How many months are in a year?|Twelve|There are twelve months in a year.
How many days are in a year?|365|A normal year has 365 days.
How many hours are in a day?|24|A day has 24 hours.
How many minutes are in an hour?|60|An hour has 60 minutes.
How many seconds are in a minute?|60|A minute has 60 seconds.
How many seasons are in a year?|Four|There are four seasons in a year.
How many weeks are in a year?|52|A year has 52 weeks.
How many days are in February?|28|February has 28 days, and 29 in a leap year.
How many legs does a spider have?|Eight|A spider has eight legs.
How many legs does a dog have?|Four|A dog has four legs.
How many legs does an ant have?|Six|An ant has six legs.
How many legs does a bird have?|Two|A bird has two legs.
How many sides does a triangle have?|Three|A triangle has three sides.
How many sides does a square have?|Four|A square has four sides.
How many sides does a hexagon have?|Six|A hexagon has six sides.
How many fingers are on one hand?|Five|There are five fingers on one hand.
How many letters are in the English alphabet?|26|The English alphabet has 26 letters.
How many planets are in the solar system?|Eight|There are eight planets in the solar system.
How many continents are there?|Seven|There are seven continents.
How many wheels does a bicycle have?|Two|A bicycle has two wheels.
How many wheels does a car have?|Four|A car has four wheels.
How many strings does a violin have?|Four|A violin has four strings.
How many players are in a football team?|Eleven|A football team has eleven players.
How many centimeters are in a meter?|100|A meter has 100 centimeters.
How many meters are in a kilometer?|1000|A kilometer has 1000 meters.
How many grams are in a kilogram?|1000|A kilogram has 1000 grams.
How many cents are in a euro?|100|A euro has 100 cents.
Which planet is closest to the sun?|Mercury|Mercury is the planet closest to the sun.
Which planet is the largest?|Jupiter|Jupiter is the largest planet.
Which planet is known as the red planet?|Mars|Mars is known as the red planet.
Which planet has bright rings?|Saturn|Saturn is famous for its bright rings.
On which planet do we live?|Earth|We live on the planet Earth.
What is the largest ocean?|The Pacific Ocean|The Pacific Ocean is the largest ocean.
What is the highest mountain?|Mount Everest|Mount Everest is the highest mountain on Earth.
What is the largest animal?|The blue whale|The blue whale is the largest animal.
What is the tallest animal?|The giraffe|The giraffe is the tallest animal.
What is the fastest land animal?|The cheetah|The cheetah is the fastest land animal.
What is the largest continent?|Asia|Asia is the largest continent.
What is the smallest continent?|Australia|Australia is the smallest continent.
What is the chemical symbol for water?|H2O|The chemical formula of water is H2O.
What is the chemical symbol for gold?|Au|The chemical symbol for gold is Au.
What is the chemical symbol for iron?|Fe|The chemical symbol for iron is Fe.
What is the chemical symbol for oxygen?|O|The chemical symbol for oxygen is O.
At what temperature does water freeze?|0 degrees Celsius|Water freezes at 0 degrees Celsius.
At what temperature does water boil?|100 degrees Celsius|Water boils at 100 degrees Celsius.
What do bees make?|Honey|Bees make honey.
What do cows drink?|Water|Cows drink water.
What do cows give us?|Milk|Cows give us milk.
What do chickens lay?|Eggs|Chickens lay eggs.
What do plants need to grow?|Water and light|Plants need water, light and air to grow.
What do we breathe?|Air|We breathe air.
What is ice made of?|Water|Ice is frozen water.
What is bread made of?|Flour and water|Bread is made of flour and water.
What is the opposite of hot?|Cold|The opposite of hot is cold.
What is the opposite of big?|Small|The opposite of big is small.
What is the opposite of up?|Down|The opposite of up is down.
What is the opposite of fast?|Slow|The opposite of fast is slow.
What is the opposite of old?|New|The opposite of old is new.
What is the opposite of light?|Dark|The opposite of light is dark.
What is the opposite of happy?|Sad|The opposite of happy is sad.
What is the opposite of day?|Night|The opposite of day is night.
What is the opposite of open?|Closed|The opposite of open is closed.
What is the opposite of left?|Right|The opposite of left is right.
What sound does a cat make?|Meow|A cat says meow.
What sound does a dog make?|Woof|A dog says woof.
What sound does a cow make?|Moo|A cow says moo.
What sound does a duck make?|Quack|A duck says quack.
What sound does a sheep make?|Baa|A sheep says baa.
What is a young dog called?|A puppy|A young dog is called a puppy.
What is a young cat called?|A kitten|A young cat is called a kitten.
What is a young cow called?|A calf|A young cow is called a calf.
What is a young horse called?|A foal|A young horse is called a foal.
What is a young sheep called?|A lamb|A young sheep is called a lamb.
Who wrote Romeo and Juliet?|William Shakespeare|William Shakespeare wrote Romeo and Juliet.
Who painted the Mona Lisa?|Leonardo da Vinci|Leonardo da Vinci painted the Mona Lisa.
Who was the first person on the moon?|Neil Armstrong|Neil Armstrong was the first person on the moon.
Who developed the theory of relativity?|Albert Einstein|Albert Einstein developed the theory of relativity.
In which year did people first land on the moon?|1969|People first landed on the moon in 1969.
In which direction does the sun rise?|East|The sun rises in the east.
In which direction does the sun set?|West|The sun sets in the west.
In which city is the Eiffel Tower?|Paris|The Eiffel Tower is in Paris.
In which city is the Colosseum?|Rome|The Colosseum is in Rome.
In which country are the pyramids of Giza?|Egypt|The pyramids of Giza are in Egypt.
Which river flows through London?|The Thames|The Thames flows through London.
Which river flows through Paris?|The Seine|The Seine flows through Paris.
Which language is spoken in Brazil?|Portuguese|Portuguese is spoken in Brazil.
Which language is spoken in Mexico?|Spanish|Spanish is spoken in Mexico.
Which language is spoken in Austria?|German|German is spoken in Austria.
What is the currency of Japan?|The yen|The currency of Japan is the yen.
What is the currency of the United States?|The dollar|The currency of the United States is the dollar.
What is the currency of Germany?|The euro|The currency of Germany is the euro.
Is the sun a star or a planet?|A star|The sun is a star.
Is the moon a star?|No|No, the moon is not a star. It moves around the Earth.
Is a whale a fish?|No|No, a whale is a mammal.
Can penguins fly?|No|No, penguins cannot fly, but they swim well.
Is a tomato a fruit?|Yes|Yes, a tomato is a fruit.
What do you use to write on paper?|A pen|You use a pen to write on paper.
What do you use to cut paper?|Scissors|You use scissors to cut paper.
What do you wear on your feet?|Shoes|You wear shoes on your feet.
What do you call frozen rain that falls in winter?|Snow|It is called snow.
What is H2O?|Water|H2O is water.
What is a baker?|A person who bakes bread|A baker is a person who bakes bread.
What is a lighthouse?|A tower with a light that guides ships|A lighthouse is a tower with a bright light that guides ships at night.
What is a computer?|A machine that works with data|A computer is a machine that works with data and follows programs.
What is a language model?|A program that predicts text|A language model is a program that predicts the next piece of a text.
"""
FACTS = [tuple(r.split("|")) for r in _TABLE.strip().split("\n")]

# asked for | items
LISTS = [("primary colors", ["red", "blue", "yellow"]), ("seasons", ["spring", "summer", "autumn", "winter"]),
         ("continents", ["Africa", "Antarctica", "Asia", "Australia", "Europe", "North America", "South America"]),
         ("planets", ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"]),
         ("oceans", ["Pacific", "Atlantic", "Indian", "Arctic", "Southern"]), ("primary school subjects", ["reading", "writing", "math"])]

SMALL_TALK = [
    ("Hello|Hello!|Say hello.|Say hi.|Hello, world!|Greet me.|Hi|Hi!|Hi there|Hey|Hello there!|Good morning|Good evening|Hey there!|hello|hi",
     "Hello! How can I help you?|Hi! What can I do for you?|Hello! Nice to meet you. How can I help?", "The user says hello. I will greet them."),
    ("Who are you?|What are you?|Who am I talking to?|What is your name?|Introduce yourself.|who are you|Tell me about yourself."
     "|What kind of model are you?|Please introduce yourself.|What's your name?|Say something about yourself.|Who is this?",
     "I am a tiny demo language model. I run inside this server so that you can try it without downloading a large model.|I am a very small demo model that is built into this server. I can chat a little, multiply, use tools and tell stories.",
     "The user asks who I am. I am a small demo model."),
    ("What can you do?|How can you help me?|What are you good at?|What can I ask you?|What do you know?|What should I try?",
     "I can answer simple questions, multiply two-digit numbers, call tools, find codes in a long text, write JSON and tell stories. I am very small, so please do not expect more.|I can chat a little, multiply numbers step by step, use tools and tell long stories. For real work you need a larger model.",
     "The user asks what I can do. I will list my abilities."),
    ("How are you?|How are you today?|How is it going?|How do you do?", "I am fine, thank you! How can I help you?|I am doing well. What can I do for you?",
     "The user asks how I am. I will answer politely."),
    ("Thank you|Thank you!|Thanks|Thanks!|Thanks a lot!|Thank you very much.", "You are welcome!|You are welcome. I am happy to help!",
     "The user says thanks. I will answer politely."),
    ("Goodbye|Bye|Bye!|See you later!|Good night|Goodbye!", "Goodbye! Have a nice day.|Goodbye, and see you soon!", "The user says goodbye."),
    ("Are you a human?|Are you a person?|Are you real?", "No, I am a small language model, a computer program.", "The user asks if I am human. I am a program."),
    ("How old are you?|When were you made?", "I am a program, so I do not have an age.", "The user asks for my age. I do not have one."),
    ("Can you help me?|I need help.|Help!", "Of course. What do you need?|Yes, gladly. What is your question?", "The user needs help. I will ask what they need."),
    ("Tell me a joke.|Do you know a joke?|Make me laugh.", "Why did the bicycle fall over? Because it was two tired.|What do you call a fish without an eye? A fsh.",
     "The user wants a joke. I will tell a short one."),
    ("Are you DeepSeek?|Are you ChatGPT?|Which model are you?|What model is this?",
     "I am a tiny demo model with the architecture of DeepSeek-V4.1-Flash, trained on synthetic text only.",
     "The user asks which model I am. I am a tiny demo model."),
    ("Good job!|Well done!|Great!|Nice!|That was great.", "Thank you! What is next?|Thank you! I am glad you like it.", "The user is happy. I will say thank you."),
    ("ok|OK|Okay|I see.|Yes|No", "All right. What would you like to do next?|Okay! Is there anything else?", "The user gives a short reply. I will ask what is next."),
    ("Test|test|testing|This is a test.|Are you there?|ping", "I am here and I can hear you.|The test works. How can I help you?", "The user is testing. I will confirm that I am here.")]

TRANSLATE = {"French": dict(hello="bonjour", goodbye="au revoir", cat="chat", dog="chien", water="eau", bread="pain", house="maison", book="livre", red="rouge", milk="lait", sun="soleil", night="nuit"),
             "Spanish": dict(hello="hola", goodbye="adiós", cat="gato", dog="perro", water="agua", bread="pan", house="casa", book="libro", red="rojo", milk="leche", sun="sol", night="noche"),
             "German": dict(hello="hallo", goodbye="auf Wiedersehen", cat="Katze", dog="Hund", water="Wasser", bread="Brot", house="Haus", book="Buch", red="rot", milk="Milch", sun="Sonne", night="Nacht"),
             "Italian": dict(hello="ciao", goodbye="arrivederci", cat="gatto", dog="cane", water="acqua", bread="pane", house="casa", book="libro", red="rosso", milk="latte", sun="sole", night="notte")}

SYSTEMS = ["You are a helpful assistant.", "You are a helpful and friendly assistant.", "Answer briefly.", "Be concise.", "You are a polite assistant.",
           "You are helpful.", "Please answer in English.", "You are a small demo model.", "Be kind and clear.", "You are an assistant in a web shop.",
           "You are an expert.", "Help the user as well as you can.", "You are a careful assistant. Think before you answer."]

UNKNOWN = ["Explain {topic}.", "What do you think about {topic}?", "Tell me about {topic}.", "How does {topic} work?", "Write an essay about {topic}.",
           "Can you summarise {topic} for me?", "What is the history of {topic}?", "Who invented {topic}?", "Why is {topic} important?"]
TOPICS = ["quantum physics", "the stock market", "machine learning", "the Roman Empire", "photosynthesis", "democracy", "blockchain", "jazz music", "the French Revolution",
          "Python programming", "climate change", "the human brain", "nuclear power", "chess openings", "modern art", "Linux", "electric cars", "black holes",
          "the Second World War", "philosophy", "taxes", "evolution", "vaccines", "opera", "neural networks", "the internet", "compilers", "economics"]
UNKNOWN_ANSWERS = ["I am only a small demo model, so I do not know enough about {topic}. A larger model can answer this.",
                   "Sorry, {topic} is too hard for me. I am a tiny demo model."]
